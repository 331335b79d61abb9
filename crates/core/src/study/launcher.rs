//! How trial processes are started: on this machine, or through the engine that runs a cluster's programs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How trial processes are started. Whatever starts them passes their standard streams through.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LauncherSettings {
    /// Processes of this machine.
    #[default]
    Local,
    /// Tasks of a Slurm cluster, through `srun`.
    Slurm(SlurmLauncher),
    /// Processes on other machines, through `ssh`.
    Ssh(SshLauncher),
    /// Pods of a Kubernetes cluster, through `kubectl run -i`.
    Kubernetes(KubernetesLauncher),
    /// Processes of any program that runs another one: its words stand before the trial's, `[nice, -n, 5]` say.
    /// `{worker}` in them stands for the worker's number.
    Command(Vec<String>),
}

impl LauncherSettings {
    /// Whether trials run as processes that this program starts itself.
    pub fn is_local(&self) -> bool {
        *self == Self::Local
    }

    /// Whether trials run on other machines than this one, as far as is known.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self, Self::Slurm(_) | Self::Ssh(_) | Self::Kubernetes(_))
    }
}

/// Resources that `srun` is asked for, for each worker. Without a key, the cluster's own default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SlurmLauncher {
    pub partition: Option<String>,
    pub account: Option<String>,
    pub qos: Option<String>,
    /// Features that a node must have.
    pub constraint: Option<String>,
    /// GPUs of each worker: a number, or with a kind as in `a100:2`.
    #[serde(deserialize_with = "number_or_name")]
    #[schemars(with = "Option<NumberOrName>")]
    pub gpus: Option<String>,
    /// Processors of each worker.
    pub cpus: Option<u32>,
    /// Memory of each worker as Slurm writes it: `32G`.
    pub memory: Option<String>,
    /// Time after which Slurm ends a worker, as Slurm writes it: `2:00:00`. The trial under way is then tried again.
    pub time: Option<String>,
    /// Further arguments of `srun`.
    pub arguments: Vec<String>,
    /// Path of this program as the nodes know it; default: where it is on this machine.
    pub program: Option<String>,
}

/// Machines to reach through `ssh`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SshLauncher {
    /// One worker on each: `gpu1` or `user@gpu1`.
    pub hosts: Vec<String>,
    /// Further arguments of `ssh`, such as `[-p, 2222]`.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Environment variables that are set there.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Path of this program as those machines know it; default `peft-tune`.
    pub program: Option<String>,
}

/// Pods, one for each worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesLauncher {
    /// Container image with this program in it.
    pub image: String,
    pub namespace: Option<String>,
    /// GPUs of each pod (`nvidia.com/gpu`).
    pub gpus: Option<u32>,
    /// Processors of each pod, as Kubernetes writes them: `4`, `500m`.
    #[serde(default, deserialize_with = "number_or_name")]
    #[schemars(with = "Option<NumberOrName>")]
    pub cpus: Option<String>,
    /// Memory of each pod, as Kubernetes writes it: `16Gi`.
    pub memory: Option<String>,
    /// A volume claim with model and data, and where the pod has it: `{claim: data, path: /data}`.
    pub volume: Option<KubernetesVolume>,
    /// Environment variables that are set in the pods.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Further arguments of `kubectl run`.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Path of this program as the image knows it; default `peft-tune`.
    pub program: Option<String>,
}

/// A persistent volume claim and its place in a pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesVolume {
    pub claim: String,
    pub path: String,
}

/// A number, or text that begins with one.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum NumberOrName {
    Number(u32),
    Name(String),
}

fn number_or_name<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let value = Option::<NumberOrName>::deserialize(deserializer)?;
    Ok(value.map(|value| match value {
        NumberOrName::Number(number) => number.to_string(),
        NumberOrName::Name(name) => name,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_a_name_or_a_name_with_settings() {
        let read = |text: &str| serde_json::from_str::<LauncherSettings>(text);
        assert!(read(r#""local""#).unwrap().is_local());
        let slurm = read(r#"{"slurm": {"gpus": 2, "memory": "32G"}}"#).unwrap();
        let expected = SlurmLauncher {
            gpus: Some("2".to_owned()),
            memory: Some("32G".to_owned()),
            ..SlurmLauncher::default()
        };
        assert_eq!(slurm, LauncherSettings::Slurm(expected));
        assert!(
            read(r#"{"slurm": {"gpu": 2}}"#)
                .unwrap_err()
                .to_string()
                .contains("gpus")
        );
        assert!(read(r#"{"ssh": {}}"#).unwrap_err().to_string().contains("hosts"));
    }
}
