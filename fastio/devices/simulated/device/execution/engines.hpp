#pragma once

#include "execution/machine.hpp"

namespace simulated {

/// Runs a work on its engine and keeps the engine until the time that the model gives. Called without the lock.
void execute(Stream& stream, Work& work);

}  // namespace simulated
