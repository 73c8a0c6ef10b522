"""WDic, RDic and WRDic: what each tool took for each size in each context, and the tuner that fills them.

Example::

    from fastio.dicts import Context, WDic

    dictionary = WDic()
    context = Context("save", "pt", "cpu", durable=True)
    choice = dictionary.choose(context, 1 << 20, ["uring", "posix", "torch"])
    dictionary.observe(context, 1 << 20, choice.tool, seconds=0.0012)
    print(dictionary.explain(context, 1 << 20, ["uring", "posix", "torch"]))
"""

import typing as _typing
from importlib import import_module as _import_module

from fastio.dicts.choice import Choice
from fastio.dicts.context import Context, small_class
from fastio.dicts.defaults import default, flush, forget, warm_up
from fastio.dicts.dictionary import Dictionary, RDic, WDic
from fastio.dicts.policy import Policy, resolve
from fastio.dicts.wrdic import WRDic

if _typing.TYPE_CHECKING:
    from fastio.dicts.explain import Entry, Explanation
else:

    def __getattr__(name: str) -> object:
        """Import what explains choices only when it is used: `import fastio` stays light."""
        if name in {"Entry", "Explanation"}:
            return getattr(_import_module("fastio.dicts.explain"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Choice",
    "Context",
    "Dictionary",
    "Entry",
    "Explanation",
    "Policy",
    "RDic",
    "WDic",
    "WRDic",
    "default",
    "flush",
    "forget",
    "resolve",
    "small_class",
    "warm_up",
]
