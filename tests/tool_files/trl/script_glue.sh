accelerate launch run_glue_no_trainer.py --model_name_or_path models/llama_1b --max_length 64 --per_device_train_batch_size 4 --learning_rate 1e-5
