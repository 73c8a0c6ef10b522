// Runs one test of the emulated machine: rig TEST DRIVER DISK... (see plan.sh). Exits with 0 if it passed.
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <string>

#include "counts.hpp"
#include "extents.hpp"
#include "failures.hpp"
#include "peer.hpp"
#include "stores.hpp"
#include "vfio/peer.hpp"

namespace {

using Test = std::function<void(const std::string&, const rig::Places&)>;

void extents(const std::string& driver, const rig::Places& places) { rig::test_extents(driver, places, {}); }

void extents_with_resets(const std::string& driver, const rig::Places& places) {
    rig::ExtentsOptions options;
    options.operations = 2000;
    options.reset = rig::reset_file(driver, places.at(0));
    rig::test_extents(driver, places, options);
}

void extents_in_bar(const std::string& driver, const rig::Places& places) {
    const fastio::VfioPeer bar(rig::kPeer, rig::kPeerBar);
    rig::ExtentsOptions options;
    options.operations = 2000;
    options.memory = bar.address() + rig::kPeerSpare;
    options.memory_nbytes = bar.nbytes() - rig::kPeerSpare;
    rig::test_extents(driver, places, options);
}

void audit(const std::string&, const rig::Places& places) { rig::test_audit(places); }

const std::map<std::string, Test> kTests = {
    {"extents", extents},
    {"extents-with-resets", extents_with_resets},
    {"extents-in-bar", extents_in_bar},
    {"audit", audit},
    {"queue-full", rig::test_queue_full},
    {"splitting", rig::test_splitting},
    {"capacity", rig::test_capacity},
    {"threads", rig::test_threads},
    {"order", rig::test_order},
    {"bad-blocks", rig::test_bad_blocks},
    {"killed", rig::test_killed},
    {"timeout", rig::test_timeout},
    {"in-use", rig::test_in_use},
    {"handover", rig::test_handover},
    {"opened-in-reset", rig::test_opened_in_reset},
    {"peer", rig::test_peer},
    {"counts", rig::test_counts},
    {"counts-in-bar", rig::test_counts_in_bar},
};

}  // namespace

int main(int count, char** arguments) {
    if (count < 4 || kTests.count(arguments[1]) == 0) {
        std::fprintf(stderr, "usage: rig TEST DRIVER DISK...\n");
        return 2;
    }
    try {
        kTests.at(arguments[1])(arguments[2], rig::Places(arguments + 3, arguments + count));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", arguments[1], error.what());
        return 1;
    }
    return 0;
}
