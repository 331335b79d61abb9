accelerate launch train_chats.py --model_name_or_path models/llama --use_adalora --learning_rate 1e-4 --max_length 64
