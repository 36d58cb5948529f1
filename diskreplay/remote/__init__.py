"""Stores under a URL: pushing to object storage, and reading through a mirror. Other rooms import from here alone.

A program whose stores are all local does not import this room: buffers do so where they are given a URL.
"""

from diskreplay.remote.background import BackgroundPush
from diskreplay.remote.collect import Garbage, collect_garbage
from diskreplay.remote.membership import claim_url, find_store, join_store
from diskreplay.remote.needed import needed_arrays, needed_objects
from diskreplay.remote.objects import Objects, ObjectStore
from diskreplay.remote.place import default_mirror, local, locate_store, open_remote, open_store
from diskreplay.remote.push import Push
from diskreplay.remote.remote_files import RemoteFiles
from diskreplay.remote.trainer_checkpoints import RemoteCheckpoints, remote_checkpoints

__all__ = ["BackgroundPush", "Garbage", "ObjectStore", "Objects", "Push", "RemoteCheckpoints", "RemoteFiles"]
__all__ += ["claim_url", "collect_garbage", "default_mirror", "find_store", "join_store", "local", "locate_store"]
__all__ += ["needed_arrays", "needed_objects", "open_remote", "open_store", "remote_checkpoints"]
