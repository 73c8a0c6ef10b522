#pragma once

#include "execution/machine.hpp"

namespace simulated {

/// What a stream's thread does, for ever: takes the works from the queue and runs them in turn.
void serve(Stream& stream);

}  // namespace simulated
