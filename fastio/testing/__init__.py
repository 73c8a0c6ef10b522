"""The tests that every transport must pass: those of fastio, and those of a plug-in.

Needs pytest and hypothesis, which fastio itself does not: ``pip install pytest hypothesis``. ``import fastio`` does not
import this package. In a test module of a plug-in::

    from fastio.testing import TransportContract
    from mypackage.transport import MyTransport

    class TestMyTransport(TransportContract):
        make = MyTransport

``docs/extending.md`` says which of the three classes to derive from.
"""

import pytest

# A failing assertion in these modules shows its values, as in a test module.
pytest.register_assert_rewrite("fastio.testing.load_contract", "fastio.testing.transport_contract")

from fastio.testing.load_contract import LoadContract  # noqa: E402
from fastio.testing.transport_contract import ChecksumContract, TransportContract  # noqa: E402

__all__ = ["ChecksumContract", "LoadContract", "TransportContract"]
