python tune.py --model_name_or_path models/llama_1b --use_peft --lora_r 8 --max_seq_len 256 --learning_rate 1e-4 --dtype bfloat16
