accelerate launch --num_processes 8 --config_file z3.yaml sft.py --model_name_or_path models/llama_1b --use_peft \
  --lora_r 8 --max_length 512 --per_device_train_batch_size 2 --dtype bfloat16
