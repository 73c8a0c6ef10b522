"""Plug-ins for trainers that users already have: their checkpoints, in their own files, by fastio.

=================================================== ==================================================================
:mod:`fastio.integrations.lightning`                a ``CheckpointIO`` for ``lightning`` (Trainer and Fabric)
:mod:`fastio.integrations.pytorch_lightning`        the same, for the package ``pytorch_lightning``
:mod:`fastio.integrations.transformers`             ``transformers.Trainer`` and ``save_pretrained``
:mod:`fastio.integrations.accelerate`               ``Accelerator.save_state`` and ``load_state``
=================================================== ==================================================================

Each is imported by its own name, and imports its library; without the library that is an ImportError that says what to
install. A training loop of one's own needs none of them: see :class:`fastio.Checkpointer`.
"""
