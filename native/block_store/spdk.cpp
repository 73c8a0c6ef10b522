// The driver "spdk": SPDK's user-space NVMe driver, over PCIe, TCP and SPDK's other transports.
#include "spdk/environment.hpp"
#include "support/errors.hpp"

#ifdef FASTIO_SPDK

#include <sched.h>

#include <algorithm>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "spdk/device.hpp"

namespace fastio {

namespace {

constexpr unsigned kSpdkDepth = 32;

class SpdkDriver final : public StoreDriver {
  public:
    explicit SpdkDriver(const std::vector<std::string>& ids) {
        if (ids.empty()) throw Refused("no transport id was given: expected one such as 'trtype=TCP traddr=...'");
        std::vector<spdk_nvme_transport_id> places;
        for (const std::string& id : ids) {
            spdk_nvme_transport_id where{};
            if (spdk_nvme_transport_id_parse(&where, id.c_str()) != 0) {
                throw Refused("'" + id +
                              "' is not an SPDK transport id: expected 'trtype=PCIe traddr=0000:03:00.0' or "
                              "'trtype=TCP adrfam=IPv4 traddr=... trsvcid=4420 subnqn=...'");
            }
            sockets_ = sockets_ && where.trtype == SPDK_NVME_TRANSPORT_TCP;
            places.push_back(where);
        }
        start_spdk(!sockets_);
        std::vector<std::shared_ptr<SpdkController>> controllers;
        for (size_t number = 0; number < ids.size(); ++number) {
            const spdk_nvme_transport_id& where = places[number];
            auto known = std::find_if(controllers.begin(), controllers.end(),
                                      [&](const auto& controller) { return controller->is_at(where); });
            if (known == controllers.end()) {
                controllers.push_back(std::make_shared<SpdkController>(where, ids[number]));
                known = controllers.end() - 1;
            }
            devices_.push_back(std::make_unique<SpdkDevice>(*known, ids[number], completions_));
            largest_ = std::min(largest_, devices_.back()->largest_transfer());
        }
    }

    unsigned depth() const override { return kSpdkDepth; }

    std::string map_memory(uint8_t* memory, uint64_t nbytes) override {
        if (sockets_) return {};
        try {
            mapped_.emplace_back(memory, SpdkMemory(memory, nbytes));
        } catch (const Refused& refused) {
            return "SPDK cannot reach this memory (" + refused.reason + ")";
        }
        return {};
    }

    void unmap_memory(uint8_t* memory) override {
        mapped_.remove_if([memory](const auto& one) { return one.first == memory; });
    }

    bool reaches(const uint8_t* memory, uint64_t nbytes) const override {
        return sockets_ || std::any_of(mapped_.begin(), mapped_.end(),
                                       [&](const auto& one) { return one.second.holds(memory, nbytes); });
    }

    uint64_t largest_transfer() const override { return largest_; }

    std::vector<Device> devices() const override {
        std::vector<Device> described;
        for (const auto& device : devices_) described.push_back(device->describe());
        return described;
    }

    void send(const DeviceCommand& command) override {
        std::lock_guard<std::mutex> lock(mutex_);
        devices_[command.device]->send(command);
    }

    void flush() override {
        std::lock_guard<std::mutex> lock(mutex_);
        poll();
    }

    // Polls, because SPDK has no other way.
    void wait() override {
        for (;; sched_yield()) {
            std::lock_guard<std::mutex> lock(mutex_);
            if (!completions_.empty()) return;
            poll();
            if (!completions_.empty()) return;
        }
    }

    bool reap(DeviceCompletion& completion) override {
        std::lock_guard<std::mutex> lock(mutex_);
        if (completions_.empty()) poll();
        if (completions_.empty()) return false;
        completion = completions_.front();
        completions_.pop_front();
        return true;
    }

    unsigned unsent() const override { return 0; }

  private:
    std::mutex mutex_;     // one thread at a time may use a queue pair, and wait() is called without the store's lock
    bool sockets_ = true;  // all devices are over TCP, which takes any memory
    uint64_t largest_ = 1 << 20;
    std::deque<DeviceCompletion> completions_;
    std::list<std::pair<uint8_t*, SpdkMemory>> mapped_;
    std::vector<std::unique_ptr<SpdkDevice>> devices_;  // declared last: they use all members above

    void poll() {
        for (const auto& device : devices_) device->poll();
    }
};

}  // namespace

std::unique_ptr<StoreDriver> make_spdk_driver(const std::vector<std::string>& devices) {
    return std::make_unique<SpdkDriver>(devices);
}

}  // namespace fastio

#else

#include "block_store/driver.hpp"

namespace fastio {

std::unique_ptr<StoreDriver> make_spdk_driver(const std::vector<std::string>&) { throw Refused(why_no_spdk()); }

}  // namespace fastio

#endif
