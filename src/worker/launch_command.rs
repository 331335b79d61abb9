//! Words that start a program through a launcher: `srun --gres=gpu:1 peft-tune worker`.
//!
//! The words `{worker}` and `{host}` stand for what the worker's slot has.

use std::path::Path;

use serde_json::json;

use crate::shell::shell_word;
use peft_tune_core::study::{KubernetesLauncher, LauncherSettings, SlurmLauncher, SshLauncher};

/// A launcher's words, and the program behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchCommand {
    /// Words before the program; none to start it directly.
    pub prefix: Vec<String>,
    /// Name of this program on the machine that runs it.
    pub program: String,
    /// Hosts, each for one worker; empty where the launcher finds a place for any number.
    pub hosts: Vec<String>,
}

impl LaunchCommand {
    /// The words of `settings`. `program` is this program on this machine; `process` tells apart those that search at the
    /// same time, in the names of pods.
    pub fn new(settings: &LauncherSettings, program: &Path, process: u32) -> Self {
        let here = program.to_string_lossy().into_owned();
        let there = |program: &Option<String>| program.clone().unwrap_or_else(|| "peft-tune".to_owned());
        match settings {
            LauncherSettings::Local => Self::anywhere(Vec::new(), here),
            LauncherSettings::Command(words) => Self::anywhere(words.clone(), here),
            LauncherSettings::Slurm(slurm) => Self::anywhere(slurm_words(slurm), slurm.program.clone().unwrap_or(here)),
            LauncherSettings::Ssh(ssh) => Self {
                hosts: ssh.hosts.clone(),
                ..Self::anywhere(ssh_words(ssh), quoted(&there(&ssh.program)))
            },
            LauncherSettings::Kubernetes(kubernetes) => {
                Self::anywhere(kubernetes_words(kubernetes, process), there(&kubernetes.program))
            }
        }
    }

    fn anywhere(prefix: Vec<String>, program: String) -> Self {
        Self {
            prefix,
            program,
            hosts: Vec::new(),
        }
    }
}

/// The words for Slurm, one task for each worker. Slurm buffers a task's output by lines unless it is told not to, ends
/// the task with `srun`, and closes the task's input with `srun`'s own, at which a worker ends by itself.
fn slurm_words(slurm: &SlurmLauncher) -> Vec<String> {
    let mut words = [
        "srun",
        "--nodes=1",
        "--ntasks=1",
        "--unbuffered",
        "--job-name=peft-tune-{worker}",
    ]
    .map(str::to_owned)
    .to_vec();
    let cpus = slurm.cpus.map(|cpus| cpus.to_string());
    let given = [
        ("--partition", &slurm.partition),
        ("--account", &slurm.account),
        ("--qos", &slurm.qos),
        ("--constraint", &slurm.constraint),
        ("--cpus-per-task", &cpus),
        ("--mem", &slurm.memory),
        ("--time", &slurm.time),
    ];
    for (flag, value) in given {
        words.extend(value.as_ref().map(|value| format!("{flag}={value}")));
    }
    words.extend(slurm.gpus.as_ref().map(|gpus| format!("--gres=gpu:{gpus}")));
    words.extend(slurm.arguments.iter().cloned());
    words
}

/// The words for ssh, which never asks for a password, and notices within a minute that the other machine is gone.
fn ssh_words(ssh: &SshLauncher) -> Vec<String> {
    let mut words = [
        "ssh",
        "-T",
        "-o",
        "BatchMode=yes",
        "-o",
        "ServerAliveInterval=15",
        "-o",
        "ServerAliveCountMax=3",
    ]
    .map(str::to_owned)
    .to_vec();
    words.extend(ssh.arguments.iter().cloned());
    words.extend(["{host}", "--", "exec"].map(str::to_owned));
    if !ssh.env.is_empty() {
        words.push("env".to_owned());
        words.extend(ssh.env.iter().map(|(name, value)| quoted(&format!("{name}={value}"))));
    }
    words
}

/// The words for Kubernetes: a pod that goes when its program ends. What `kubectl run` has no flag for is merged into
/// it, by the container's name.
fn kubernetes_words(kubernetes: &KubernetesLauncher, process: u32) -> Vec<String> {
    let name = format!("peft-tune-{process}-{{worker}}");
    let mut words = [
        "kubectl",
        "run",
        &name,
        "--stdin",
        "--quiet",
        "--rm",
        "--restart=Never",
        "--labels=app=peft-tune",
    ]
    .map(str::to_owned)
    .to_vec();
    words.push(format!("--image={}", kubernetes.image));
    let namespace = kubernetes.namespace.as_ref();
    words.extend(namespace.map(|namespace| format!("--namespace={namespace}")));
    words.extend(
        kubernetes
            .env
            .iter()
            .map(|(name, value)| format!("--env={name}={value}")),
    );
    if let Some(spec) = pod_spec(kubernetes, &name) {
        words.push("--override-type=strategic".to_owned());
        words.push(format!("--overrides={}", json!({"apiVersion": "v1", "spec": spec})));
    }
    words.extend(kubernetes.arguments.iter().cloned());
    words.extend(["--command", "--"].map(str::to_owned));
    words
}

/// Resources and volume of a pod; `None` where it needs neither.
fn pod_spec(kubernetes: &KubernetesLauncher, name: &str) -> Option<serde_json::Value> {
    let gpus = kubernetes.gpus.map(|gpus| gpus.to_string());
    let limits: serde_json::Map<_, _> = [
        ("nvidia.com/gpu", &gpus),
        ("cpu", &kubernetes.cpus),
        ("memory", &kubernetes.memory),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?))))
    .collect();
    let mut container = json!({"name": name});
    let mut spec = json!({});
    if limits.is_empty() && kubernetes.volume.is_none() {
        return None;
    }
    if !limits.is_empty() {
        container["resources"] = json!({"limits": limits});
    }
    if let Some(volume) = &kubernetes.volume {
        container["volumeMounts"] = json!([{"name": "peft-tune", "mountPath": volume.path}]);
        spec["volumes"] = json!([{"name": "peft-tune", "persistentVolumeClaim": {"claimName": volume.claim}}]);
    }
    spec["containers"] = json!([container]);
    Some(spec)
}

/// A word as the other machine's shell reads it, which knows where its home is.
fn quoted(word: &str) -> String {
    match word.strip_prefix("~/") {
        Some(rest) => format!("~/{}", shell_word(rest)),
        None => shell_word(word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::study::KubernetesVolume;

    fn words(settings: LauncherSettings) -> LaunchCommand {
        LaunchCommand::new(&settings, Path::new("/opt/my tools/peft-tune"), 7)
    }

    #[test]
    fn a_local_program_is_started_as_it_is_and_a_command_stands_before_it() {
        let local = words(LauncherSettings::Local);
        assert_eq!(
            (local.prefix.len(), local.program.as_str()),
            (0, "/opt/my tools/peft-tune")
        );
        let nice = words(LauncherSettings::Command(vec!["nice".to_owned()]));
        assert_eq!((nice.prefix, nice.program), (vec!["nice".to_owned()], local.program));
    }

    #[test]
    fn slurm_is_asked_for_what_the_file_says_and_nothing_else() {
        let plain = words(LauncherSettings::Slurm(SlurmLauncher::default()));
        assert_eq!(
            plain.prefix.join(" "),
            "srun --nodes=1 --ntasks=1 --unbuffered --job-name=peft-tune-{worker}"
        );
        let full = words(LauncherSettings::Slurm(SlurmLauncher {
            partition: Some("gpu".to_owned()),
            gpus: Some("a100:2".to_owned()),
            cpus: Some(8),
            memory: Some("32G".to_owned()),
            time: Some("2:00:00".to_owned()),
            arguments: vec!["--exclusive".to_owned()],
            program: Some("/shared/peft-tune".to_owned()),
            ..SlurmLauncher::default()
        }));
        assert!(
            full.prefix
                .join(" ")
                .ends_with("--partition=gpu --cpus-per-task=8 --mem=32G --time=2:00:00 --gres=gpu:a100:2 --exclusive")
        );
        assert_eq!(full.program, "/shared/peft-tune");
    }

    #[test]
    fn what_ssh_hands_to_the_other_shell_is_quoted() {
        let ssh = words(LauncherSettings::Ssh(SshLauncher {
            hosts: vec!["a".to_owned(), "me@b".to_owned()],
            arguments: vec!["-p".to_owned(), "2222".to_owned()],
            env: [("HF_HOME".to_owned(), "/my cache".to_owned())].into(),
            program: Some("/opt/it's/peft-tune".to_owned()),
        }));
        assert!(
            ssh.prefix
                .join(" ")
                .ends_with("-p 2222 {host} -- exec env 'HF_HOME=/my cache'")
        );
        assert_eq!(ssh.program, r"'/opt/it'\''s/peft-tune'");
        assert_eq!(ssh.hosts, ["a", "me@b"]);
    }

    #[test]
    fn a_pod_gets_its_resources_and_its_volume() {
        let pod = words(LauncherSettings::Kubernetes(KubernetesLauncher {
            image: "registry/peft-tune:1".to_owned(),
            namespace: Some("tuning".to_owned()),
            gpus: Some(1),
            cpus: None,
            memory: Some("16Gi".to_owned()),
            volume: Some(KubernetesVolume {
                claim: "data".to_owned(),
                path: "/data".to_owned(),
            }),
            env: [("A".to_owned(), "b".to_owned())].into(),
            arguments: Vec::new(),
            program: None,
        }));
        let overrides = pod
            .prefix
            .iter()
            .find_map(|word| word.strip_prefix("--overrides="))
            .unwrap();
        let spec: serde_json::Value = serde_json::from_str(overrides).unwrap();
        let container = &spec["spec"]["containers"][0];
        // Merged by name, so it must be the pod's.
        assert_eq!(container["name"], pod.prefix[2]);
        assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "1");
        assert_eq!(container["volumeMounts"][0]["mountPath"], "/data");
        assert!(pod.prefix.ends_with(&["--command".to_owned(), "--".to_owned()]));
        assert!(pod.prefix.contains(&"--env=A=b".to_owned()) && pod.program == "peft-tune");
    }
}
