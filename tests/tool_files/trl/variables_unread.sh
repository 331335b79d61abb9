eval "$(settings --shell)"
trl sft --model_name_or_path models/llama_1b --learning_rate $LR --use_peft --lora_r 8 --max_length 64
