"""What a training loop is made of. May import cli, job and data; only `devices` touches
`torch.cuda`.
"""
