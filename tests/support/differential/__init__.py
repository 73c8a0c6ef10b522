"""A differential test: compares fastio's saves and loads with torch's.

An example is an object and some ways to save and load it; both depend only on a seed and a number. torch and fastio run
each example, and the results must be the same: values bit by bit, dtypes, strides, offsets, sharing of storages and of
containers, Python types, attributes, and errors. The test only uses fastio's public names, so the same example can run
on any installed version.

From the root of the repository::

    make differential EXAMPLES=20000 SEED=1     # continues where it stopped; prints the examples per second
    make differential SEED=1 ONLY=1234          # repeats one example, and prints its object and its ways

Without make, with any Python that has fastio, from the folder ``tests/support``::

    python -m differential.run --seed 1 --examples 20000
    python -m differential.run --seed 1 --only 1234 --times 20

The files: ``classes`` has the objects' classes; ``tensors`` and ``objects`` make the objects; ``ways`` chooses how to
save and load one, and ``archives``, ``folders`` and ``formats`` do so for rewritten archives, checkpoints and the
other formats, ``models`` (with ``modules``) for loads into modules and onto devices; ``comparing`` and ``outcomes``
compare; ``schedules`` (with ``schedule.c``) delays and cuts reads; ``examples`` runs a range of numbers in one process;
``shrinking`` and ``describing`` show a difference; ``run`` is the command. ``offload`` and ``hybrid`` are commands of
their own, over torch's test databases.
"""
