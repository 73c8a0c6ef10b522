"""A differential test: what fastio saves and loads against what torch saves and loads.

An example is an object and some ways to save and load it, and both are a pure function of a seed and a number. Each
is run by torch and by fastio, and the results must be the same: values bit by bit, dtypes, strides, offsets, sharing of
storages and of containers, Python types, attributes, and errors. Only fastio's public names are used, so the same
example can be run on any version that is installed.

From the root of the repository::

    make differential EXAMPLES=20000 SEED=1     # goes on where it stopped; prints the examples done a second
    make differential SEED=1 ONLY=1234          # one example again, with its object and its ways

Without make, with any Python in which fastio is installed, from the folder ``tests``::

    python -m differential.run --seed 1 --examples 20000
    python -m differential.run --seed 1 --only 1234 --times 20

The files: ``classes`` has classes that objects are of; ``tensors`` and ``objects`` make the objects; ``ways`` chooses
how one is saved and loaded, and ``archives``, ``folders`` and ``formats`` do it for rewritten archives, for checkpoints
and for the other formats; ``comparing`` and ``outcomes`` compare; ``schedules`` (with ``schedule.c``) delays and cuts
reads; ``examples`` runs a range of numbers in one process; ``shrinking`` and ``describing`` show a difference; ``run``
is the command.
"""
