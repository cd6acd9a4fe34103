"""What verl imports in each of its processes: the entry point ``trunkline`` of the group ``verl.plugins``."""

from trunkline.train.verl import register

register()
