"""The tuned numbers of the tuner, in one place. docs/policies.md shows each with its source and its sensitivity.

``log``: a difference of logarithms of seconds; 0.1 is 10 %. ``sd``: a standard deviation of such. ``share``: of all the
seconds that calls of a context take. Modules read them when they use them, so a replay can change one
(``python -m fastio_bench.tools.scenarios --sensitivity``).
"""

# The cost model: what is not known yet
LEVEL = 0.7  # sd of the machine's speed
SPEED = 0.15  # sd of a tool's speed, beside its prior
UNLISTED_SPEED = 0.5  # the same of a tool without a prior
UNLISTED_CURVE = 0.6  # sd of its time from one knot to the next
COMMON_CURVE = 0.4  # sd of all tools' time from one knot to the next
BENT = 2.0  # sd added there, at a size whose first time is far from the expected one
COMMON_KNOT = 4  # buckets between two knots of that: one octave
KNOT = 8  # buckets between two knots of a tool's curve: two octaves
FIRST_MEAN = 0.3  # log that the first call of a process adds
FIRST = 0.8  # sd of that, the same for all tools
FIRST_OWN = 0.3  # sd of that, of one tool
FIRST_NOISE = 0.35  # sd of a first call's time
NOISE = 0.12  # sd of a later call's time, until it is known
STALLS = 0.05  # share of calls that meet a stall of the machine
STALL = 0.7  # mean log that a stall adds
# What changes
LEVEL_STEP = 0.02  # sd added to the machine's speed by each call
SPEED_STEP = 0.006  # sd added to a tool's speed by each call
CHANGED_LEVEL = 0.6  # sd added to the machine's speed by a certain change of a tool's
CHANGED_SPEED = 0.9  # sd added to the tool's
CHANGED_CURVE = 0.3  # sd added to the tool's curve
SPED_UP_LEVEL = 2.0  # sd added to the machine's speed, if the tool is faster than it ever was
RENEWED = 0.5  # sd added to all tools' speeds by a renewal
SURPRISE = 3.0  # deviations: a tool's first time near a size that is farther off bends its curve
FAR = 1.0  # log: times farther off were measured in a busy spell
# The change test
ALLOWANCE = 1.25  # deviations that are no sign of a change
LIMIT = 5.0  # sum of deviations beyond the allowance at which a change is certain
SUSPECT = 1.7  # sum at which it is suspected
CLIP = 3.0  # deviations that one slow call adds at most
MOST_SUSPICION = 1.2  # log: a greater slowdown is a stall, more likely
TAILS = 1.6  # factor of the noise in the test: times have heavier tails than the normal distribution
NOISE_STEP = 0.05  # relative change of the noise by one call
LEAST_NOISE = 0.03  # the least noise of a tool
MOST_NOISE = 0.25  # the most
RETURNED = 0.1  # log: a tool this near to its old speed is as fast as before
# Tries of other tools than the best
TRIES = 0.005  # share for all tries
MOST_TRIES = 4.0  # usual calls that tries may take to begin with
FIRST_TRIES = 1.5  # the same for each tool that was not measured near a size yet
ENOUGH_FIRST_CALLS = 2  # of other processes, near a size: the tool counts as measured there
FREE_SECONDS = 0.01  # for tries beside a prior, at once
MOST_SHARE = 0.03  # share for tries beside a prior
PAYBACK = 6.0  # a try must be expected to have saved so many times its cost since the tool's last call
FEW_TIMES_GAIN = (0.03, 0.03, 0.01)  # share of a call that a try saves, added for a tool with 0, 1, 2 times
RECOVERY_DEVIATIONS = 1.5  # in favour of a tool that became slower
LOOKS = 0.02  # share for each tool that became slower
FIRST_LOOK = 1.0  # usual calls that these may take to begin with
BAND = 8  # buckets in each of which a tool is tried again
MOST_COST = 3.0  # most cost of a try, over the best tool's time
LEAST_COST = 0.02  # least, also of a tool that is equal
TRY_SECONDS = 1e-4  # added to the cost of a try
USUAL_CALLS = 200  # window of the usual call's time
PENDING_CALLS = 16  # a try without a time is given up after so many calls
NEAR = 16  # buckets: times within four octaves are near
# Tools that failed
RETRY_CALLS = 256  # without it
RETRY_GROWTH = 4  # times as many after each further failure,
MOST_GROWTHS = 4  # so often
# Less CPU instead of less time
LARGE_NBYTES = 16 << 20  # from here on a tool equal in time, that takes less CPU, is used
EQUAL = 0.08  # log: equal in time
HUGE_NBYTES = 256 << 20  # from here on
GIVEN_AWAY = 0.12  # log: so much more time is equal
# The tuner's own time
PLAN_AGE = 512  # calls of choose and observe together for which a choice stands,
MOVED = 0.1  # log: unless an expected time moves so far
AGREES = 0.3  # log: times this near to the expected one are learned together,
MOST_WAITING = 32  # so many at once
# Priors, beside what they say
DOUBT = 0.165  # sd of a ratio between tools from one machine to another, for large sizes
SMALL_DOUBT = 0.5  # share of it for small sizes
UNLISTED = 0.2  # log: a tool that a prior does not list is so much slower than the best
