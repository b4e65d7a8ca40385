"""Models that no process has as a whole: FSDP2, ``torch.distributed.fsdp.fully_shard``."""
