python tune.py --base_model models/llama_1b --data_path data/rows.jsonl --micro_batch_size 4 --learning_rate 1e-4 --lora_r 8
