"""The command line of diskreplay: thin click commands, each calling one function of ``diskreplay.ops``."""
