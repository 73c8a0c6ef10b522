"""Plug-ins for existing trainers: fastio moves their checkpoints, in the files they already use.

=================================================== ==================================================================
:mod:`fastio.integrations.lightning`                a ``CheckpointIO`` for ``lightning`` (Trainer and Fabric)
:mod:`fastio.integrations.pytorch_lightning`        a ``CheckpointIO`` for the package ``pytorch_lightning``
:mod:`fastio.integrations.transformers`             ``transformers.Trainer`` and ``save_pretrained``
:mod:`fastio.integrations.accelerate`               ``Accelerator.save_state`` and ``load_state``
=================================================== ==================================================================

Import each by its own name. It imports its library; if that is missing, an ImportError says what to install. For your
own training loop see :class:`fastio.Checkpointer`.
"""
