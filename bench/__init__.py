"""What fastio and its peers reach on this machine: ``fastio-bench`` and the demo."""
