"""A small GPT that trains under every sharding strategy and annotates itself for tracekit.

``torchrun --standalone --nproc-per-node 2 -m instrumented_trainer --strategy fsdp2 --steps 3``
"""
