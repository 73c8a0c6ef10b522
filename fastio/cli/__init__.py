"""What the subcommands of ``fastio`` do; ``fastio_command`` has their options and help."""
