"""What the processes of one job need to work together. May import job.

ranks        which process of how many this is; how they learn that one of them has ended
collectives  what they exchange: small values between hosts, and tensors
fsdp         networks divided among them (--shard)
"""
