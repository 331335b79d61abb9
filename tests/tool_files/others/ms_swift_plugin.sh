NPROC_PER_NODE=2 swift sft \
  --model models/llama_1b \
  --external_plugins own/rhymes.py \
  --use_peft true --lora_r 8 --max_length 256 --per_device_train_batch_size 1
