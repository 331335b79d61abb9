trl sft --config sft.yaml --learning_rate 1e-4
