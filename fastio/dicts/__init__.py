"""WDic, RDic and WRDic: what each tool took for each size in each context, and the tuner that fills them.

Example::

    from fastio.dicts import Context, WDic

    dictionary = WDic()
    context = Context("save", "pt", "cpu", durable=True)
    choice = dictionary.choose(context, 1 << 20, ["uring", "posix", "torch"])
    dictionary.observe(context, 1 << 20, choice.tool, seconds=0.0012)
    print(dictionary.explain(context, 1 << 20, ["uring", "posix", "torch"]))
"""

from fastio.dicts.choice import Choice
from fastio.dicts.context import Context, small_class
from fastio.dicts.defaults import default, flush, forget, warm_up
from fastio.dicts.dictionary import Dictionary, RDic, WDic
from fastio.dicts.explain import Entry, Explanation
from fastio.dicts.policy import Policy, resolve
from fastio.dicts.wrdic import WRDic

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
