python miss_finetuning.py \
    --base_model_name_or_path models/llama_1b \
    --miss_r 64 \
    --bf16 True \
    --num_train_epochs 1 \
    --per_device_train_batch_size 2 \
    --learning_rate 2e-5
