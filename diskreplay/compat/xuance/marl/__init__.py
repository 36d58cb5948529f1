"""XuanCe's buffers for multi-agent learning; :mod:`diskreplay.compat.xuance_marl` has their names."""
