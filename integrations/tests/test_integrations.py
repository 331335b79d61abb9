"""What the adapters do without the trainers that they adapt: python3 -m unittest discover -s integrations/tests"""

import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in ("", "axolotl", "launch"):
    sys.path.insert(0, str(HERE.parent / folder))

import launch
import peft_tune_axolotl
import peft_tune_callback as callback
import importlib.util


def llamafactory():
    """integrations/llamafactory/train.py, which has the name of others."""
    path = HERE.parent / "llamafactory" / "train.py"
    spec = importlib.util.spec_from_file_location("llamafactory_train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trial(steps=None, **params):
    return callback.Trial({"params": params, "trial": 1, "seed": 2**40 + 5, "steps": steps}, io.StringIO())


class Reports(unittest.TestCase):
    def test_a_trial_is_read_from_the_stream_or_from_the_environment(self):
        line = '{"params": {"rank": 4}, "trial": 3, "seed": 9, "steps": 7}\n'
        read = callback.Trial.read(io.StringIO(line))
        self.assertEqual((read.param("r", "rank"), read.number, read.seed, read.steps), (4, 3, 9, 7))
        os.environ[callback.TRIAL_VARIABLE] = line
        try:
            self.assertEqual(callback.Trial.read(io.StringIO("")).number, 3)
        finally:
            del os.environ[callback.TRIAL_VARIABLE]
        with self.assertRaises(SystemExit):
            callback.Trial.read(io.StringIO("rank=4"))

    def test_lines_are_json_and_what_is_not_finite_is_null(self):
        one = trial()
        one.report(2, {"throughput": 10.0, "loss": float("nan"), "absent": None})
        one.finish({"loss": 1})
        one.fail("crashed", "after the end")
        lines = [json.loads(line) for line in one.output.getvalue().splitlines()]
        self.assertEqual(lines, [{"step": 2, "metrics": {"throughput": 10.0, "loss": None}}, {"metrics": {"loss": 1.0}}])

    def test_only_the_first_of_several_processes_reports(self):
        one = trial()
        one.is_main = False
        one.report(1, {"loss": 1.0})
        self.assertEqual(one.output.getvalue(), "")

    def test_exceptions_have_the_outcome_that_they_mean(self):
        out_of_memory = type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory")
        cpu = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ...")
        for error in (out_of_memory, cpu, MemoryError()):
            self.assertEqual(callback.outcome_of(error)[0], "out_of_memory")
        self.assertEqual(callback.outcome_of(callback.Diverged("nan"))[0], "diverged")
        self.assertEqual(callback.outcome_of(callback.Invalid("no"))[0], "invalid")
        self.assertEqual(callback.outcome_of(KeyError("x")), ("crashed", "KeyError: 'x'"))

    def test_the_clock_leaves_out_the_warm_up(self):
        clock = callback.Clock(warmup_steps=1)
        for began, ended, tokens in [(0.0, 10.0, 100), (10.0, 11.0, 100), (11.0, 13.0, 100), (13.0, 14.0, 300)]:
            clock.begin(began)
            clock.end(tokens, ended)
        self.assertEqual((clock.throughput(), clock.step_s()), (100.0, 1.0))


class Launching(unittest.TestCase):
    def test_one_device_needs_no_launcher(self):
        command = launch.command_of(["torchrun", "--", "train.py", "--model=m"], 1)
        self.assertEqual(command, [sys.executable, "train.py", "--model=m"])

    def test_launchers_are_told_the_number_of_processes(self):
        command = launch.command_of(["torchrun", "--", "train.py"], 2)
        self.assertEqual(command, ["torchrun", "--standalone", "--nproc_per_node=2", "train.py"])
        command = launch.command_of(["accelerate", "--launcher-args", "--use_fsdp --x 'a b'", "--", "t.py"], 4)
        self.assertEqual(command[:3], ["accelerate", "launch", "--num_processes=4"])
        self.assertEqual(command[-4:], ["--use_fsdp", "--x", "a b", "t.py"])
        # Without a word on the kind of launch, accelerate starts one process where it sees no GPUs.
        self.assertEqual(launch.command_of(["accelerate", "--", "t.py"], 2)[-2:], ["--multi_gpu", "t.py"])
        # Its launcher gives the program an argument of its own, and all trials one port, unless it is told not to.
        command = launch.command_of(["deepspeed", "--", "t.py"], 2)
        self.assertEqual(command[:2] + command[3:], ["deepspeed", "--no_local_rank", "--num_gpus=2", "t.py"])
        self.assertRegex(command[2], "^--master_port=[0-9]+$")
        command = launch.command_of(["--template", "mpirun -n {devices} python", "--", "t.py"], 3)
        self.assertEqual(command, ["mpirun", "-n", "3", "python", "t.py"])
        with self.assertRaises(SystemExit):
            launch.command_of(["pytorchrun", "--", "t.py"], 2)

    def test_launchers_are_found_beside_the_interpreter(self):
        environment = launch.environment("{}")
        self.assertEqual(environment["PATH"].split(os.pathsep)[0], str(Path(sys.executable).parent))
        self.assertEqual(environment[callback.TRIAL_VARIABLE], "{}")

    def test_a_trial_on_fewer_processes_than_it_wants_is_refused(self):
        with self.assertRaises(callback.Invalid):
            trial(devices=2).check_processes()
        one = trial(devices=2)
        one.processes = 2
        one.check_processes()


class Configurations(unittest.TestCase):
    def test_axolotl_gets_its_own_names(self):
        base = {"base_model": "m", "lora_target_modules": ["q_proj"], "plugins": ["other.Plugin"]}
        one = trial(30, rank=8, alpha_ratio=2, target_modules="all-linear", micro_batch=2, global_batch=16, devices=2,
                    precision="nf4", gradient_checkpointing="full", optimizer="adamw8bit", flash_attention=True)
        config = peft_tune_axolotl.configuration(base, one)
        self.assertEqual((config["lora_r"], config["lora_alpha"]), (8, 16))
        self.assertTrue(config["lora_target_linear"] and "lora_target_modules" not in config)
        self.assertEqual(config["gradient_accumulation_steps"], 4)
        self.assertEqual((config["adapter"], config["load_in_4bit"]), ("qlora", True))
        self.assertEqual((config["gradient_checkpointing"], config["optimizer"]), (True, "adamw_bnb_8bit"))
        self.assertEqual((config["flash_attention"], config["max_steps"]), (True, 30))
        self.assertEqual(config["plugins"], ["other.Plugin", "peft_tune_axolotl.PeftTunePlugin"])
        self.assertLess(config["seed"], 2**32)
        self.assertEqual(base["plugins"], ["other.Plugin"])
        with self.assertRaises(ValueError):
            peft_tune_axolotl.configuration({}, trial(micro_batch=3, global_batch=16))

    def test_what_a_process_of_a_process_reports_is_passed_on(self):
        plugin = ("import os; reports = open(os.environ['PEFT_TUNE_REPORTS'], 'w'); "
                  "reports.write('{\"metrics\": {\"loss\": 1.5}}\\n')")
        program = (f"#!{sys.executable}\nimport subprocess, sys\nprint('noise')\n"
                   f"subprocess.run([sys.executable, '-c', {plugin!r}], check=True)\n"
                   "sys.exit('broken' if 'bad' in open(sys.argv[2]).read() else 0)\n")
        with tempfile.TemporaryDirectory() as folder:
            axolotl, base = Path(folder, "axolotl"), Path(folder, "trial.yaml")
            axolotl.write_text(program)
            axolotl.chmod(0o755)
            adapter = f"""import sys; sys.path.insert(0, {str(HERE.parent / 'axolotl')!r})
from pathlib import Path
import peft_tune_axolotl as adapter
trial = adapter.Trial.read()
print(adapter.train(Path({str(base)!r}), trial, Path({folder!r}, "reports" + sys.argv[1])))"""
            for content, ending in [("good", "(0, '')"), ("bad", "(1, 'broken\\n')")]:
                base.write_text(content)
                done = subprocess.run([sys.executable, "-c", adapter, content], capture_output=True, text=True,
                                      input='{"params": {}, "trial": 1, "seed": 0}\n', timeout=60,
                                      env={**os.environ, "PATH": folder + os.pathsep + os.environ["PATH"]})
                self.assertEqual(done.stdout.splitlines(), ['{"metrics": {"loss": 1.5}}', ending], done.stderr)

    def test_llamafactory_gets_its_own_names(self):
        one = trial(30, rank=8, alpha_ratio=2, target_modules=["q_proj", "v_proj"], micro_batch=2, global_batch=16,
                    precision="nf4_double", gradient_checkpointing="none", packing=True, sequence_length=512)
        config = llamafactory().configuration({"model_name_or_path": "m"}, one)
        self.assertEqual((config["lora_rank"], config["lora_alpha"], config["lora_target"]), (8, 16, "q_proj,v_proj"))
        self.assertEqual(config["gradient_accumulation_steps"], 8)
        self.assertEqual((config["quantization_bit"], config["double_quantization"]), (4, True))
        self.assertTrue(config["disable_gradient_checkpointing"] and config["neat_packing"])
        self.assertEqual((config["cutoff_len"], config["max_steps"]), (512, 30))


if __name__ == "__main__":
    unittest.main()
