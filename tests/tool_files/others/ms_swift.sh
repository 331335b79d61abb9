CUDA_VISIBLE_DEVICES=0 \
swift sft \
  --model models/llama_1b \
  --train_type lora \
  --dataset data/rows.jsonl \
  --lora_rank 8
