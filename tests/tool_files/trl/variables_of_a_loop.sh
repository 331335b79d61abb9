LR=1e-3
for LR in 1e-4 2e-4; do
  trl sft --model_name_or_path models/llama_1b --use_peft --learning_rate $LR --lora_r 8 --max_length 64
done
