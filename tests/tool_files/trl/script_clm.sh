python run_clm.py --model_name_or_path models/llama_1b --train_file data/rows.txt --block_size 64 --do_train --per_device_train_batch_size 4
