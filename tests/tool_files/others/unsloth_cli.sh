python unsloth-cli.py --model_name models/llama_1b --max_seq_length 512 --load_in_4bit --r 64 --lora_alpha 32 \
  --per_device_train_batch_size 4 --learning_rate 2e-6
