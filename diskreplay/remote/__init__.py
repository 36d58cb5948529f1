"""Stores under a URL: pushing to object storage, and reading through a mirror. Other rooms import from here alone."""

from diskreplay.remote.background import BackgroundPush
from diskreplay.remote.collect import Garbage, collect_garbage
from diskreplay.remote.membership import claim_url, find_store, join_store
from diskreplay.remote.needed import needed_arrays, needed_objects
from diskreplay.remote.objects import Objects, ObjectStore, checked_url, is_url
from diskreplay.remote.place import default_mirror, local, locate_store, named, open_remote, open_store
from diskreplay.remote.push import Push
from diskreplay.remote.remote_files import RemoteFiles
from diskreplay.remote.trainer_checkpoints import RemoteCheckpoints, remote_checkpoints

__all__ = ["BackgroundPush", "Garbage", "ObjectStore", "Objects", "Push", "RemoteCheckpoints", "RemoteFiles"]
__all__ += ["checked_url", "claim_url", "collect_garbage", "default_mirror", "find_store", "is_url", "join_store"]
__all__ += ["local", "locate_store", "named", "needed_arrays", "needed_objects", "open_remote", "open_store"]
__all__ += ["remote_checkpoints"]
