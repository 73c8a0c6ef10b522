"""Plug-ins for existing libraries: fastio moves their checkpoints and weights, in the files they already use.

=================================================== ==================================================================
:mod:`fastio.integrations.lightning`                a ``CheckpointIO`` for ``lightning`` (Trainer and Fabric)
:mod:`fastio.integrations.pytorch_lightning`        a ``CheckpointIO`` for the package ``pytorch_lightning``
:mod:`fastio.integrations.transformers`             ``transformers.Trainer`` and ``save_pretrained``
:mod:`fastio.integrations.accelerate`               ``Accelerator.save_state`` and ``load_state``
``fastio.integrations.torch_checkpointing``         a storage for ``torch_checkpointing.CheckpointManager``
``fastio.integrations.torchtitan``                  a checkpoint manager for torchtitan's ``Trainer``
``fastio.integrations.deepspeed``                   a checkpoint engine for DeepSpeed
``fastio.integrations.torchft``                     a checkpoint transport for torchft's ``Manager``
``fastio.integrations.vllm``                        a model loader for vLLM, ``--load-format fastio``
=================================================== ==================================================================

All other libraries on top of safetensors need no plug-in: see :func:`fastio.patch_safetensors`.

Import each by its own name. It imports its library; if that is missing, an ImportError says what to install. vLLM
imports its own. For your own training loop see :class:`fastio.Checkpointer`.
"""
