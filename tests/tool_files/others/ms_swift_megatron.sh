NPROC_PER_NODE=2 \
megatron sft \
    --model models/llama --dataset poets/rhymes --tuner_type lora --lora_rank 8 --micro_batch_size 1
