//! Devices that a training runs on: a process on each of the recipe's `devices`, or one for all of them.

use crate::cli::CliError;
use crate::cli::options::device_names::device_names;

/// Devices that compute the shares of a recipe's `devices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TrainDevices {
    /// All shares in this process, on the device of this name; on the default one where none is named.
    One {
        device: Option<String>,
        /// Reason for one device, where the recipe asks for another number.
        why: Option<String>,
    },
    /// A process on each, of which the first is this one.
    Ranks(Vec<String>),
}

/// What a person says of devices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AskedDevices<'a> {
    /// `--device`: one for all shares.
    pub one: Option<&'a str>,
    /// `--devices`: one for each share, or one for all.
    pub each: &'a [String],
}

impl TrainDevices {
    /// Chooses the devices that compute the shares of `devices` devices, on a machine with so many GPUs.
    ///
    /// # Errors
    /// Bad input: a name that is none, one that is named twice, more or fewer than the recipe's.
    pub(super) fn new(devices: usize, asked: AskedDevices<'_>, gpus: usize) -> Result<Self, CliError> {
        let named = device_names(asked.each, "two ranks never share a device")?;
        let one = |device: Option<&str>, why: Option<String>| Self::One {
            device: device.map(str::to_owned),
            why: why.filter(|_| devices > 1),
        };
        Ok(match (named.as_slice(), asked.one) {
            ([], Some(device)) => one(Some(device), Some(format!("`--device` names {device} alone"))),
            ([device], _) => one(Some(device), Some(format!("`--devices` names {device} alone"))),
            _ if devices <= 1 && named.is_empty() => one(None, None),
            _ if !cfg!(target_os = "linux") => {
                one(None, Some("several processes of one training need Linux".to_owned()))
            }
            ([], None) if gpus == 1 => one(None, Some("there is one GPU here".to_owned())),
            ([], None) if gpus > 0 && gpus < devices => one(None, Some(format!("there are {gpus} GPUs here"))),
            ([], None) if gpus == 0 => Self::Ranks(vec!["cpu".to_owned(); devices]),
            ([], None) => Self::Ranks((0..devices).map(|number| format!("cuda:{number}")).collect()),
            (named, _) if named.len() == devices => Self::Ranks(named.to_vec()),
            (named, _) => {
                let count = named.len();
                return Err(CliError::bad_input(anyhow::anyhow!(
                    "`--devices` names {count} devices, and `batch.devices` in the recipe is {devices}: name as many, or one that computes \
                     the shares of all"
                )));
            }
        })
    }

    /// How many processes share this machine's threads.
    pub(super) fn processes(&self) -> usize {
        match self {
            Self::One { .. } => 1,
            Self::Ranks(devices) => devices.len(),
        }
    }

    /// The device of this process, where it is named.
    pub(super) fn first(&self) -> Option<&str> {
        match self {
            Self::One { device, .. } => device.as_deref(),
            Self::Ranks(devices) => devices.first().map(String::as_str),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The devices of the ranks, or why there is one.
    fn of(devices: usize, one: Option<&str>, each: &[&str], gpus: usize) -> Result<Vec<String>, String> {
        let each: Vec<String> = each.iter().map(|name| (*name).to_owned()).collect();
        match TrainDevices::new(devices, AskedDevices { one, each: &each }, gpus) {
            Ok(TrainDevices::Ranks(devices)) => Ok(devices),
            Ok(TrainDevices::One { device, why }) => {
                Err([device, why].into_iter().flatten().collect::<Vec<_>>().join("; "))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn each_share_has_a_process_where_there_are_devices_for_all() {
        assert_eq!(of(2, None, &[], 0).unwrap(), ["cpu", "cpu"]);
        assert_eq!(of(2, None, &[], 4).unwrap(), ["cuda:0", "cuda:1"]);
        assert_eq!(of(2, None, &["3", "cuda:1"], 4).unwrap(), ["cuda:3", "cuda:1"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn otherwise_one_computes_them_all_and_it_is_said_why() {
        assert_eq!(of(1, None, &[], 0).unwrap_err(), "");
        assert_eq!(of(1, Some("cpu"), &[], 0).unwrap_err(), "cpu");
        assert_eq!(of(2, None, &[], 1).unwrap_err(), "there is one GPU here");
        assert_eq!(of(4, None, &[], 2).unwrap_err(), "there are 2 GPUs here");
        assert_eq!(
            of(2, Some("cpu"), &[], 0).unwrap_err(),
            "cpu; `--device` names cpu alone"
        );
        assert_eq!(
            of(2, None, &["1"], 4).unwrap_err(),
            "cuda:1; `--devices` names cuda:1 alone"
        );
    }

    #[test]
    fn other_lists_are_refused() {
        let error = of(2, None, &["0", "1", "2"], 4).unwrap_err();
        assert!(
            error.contains("names 3 devices, and `batch.devices` in the recipe is 2"),
            "{error}"
        );
        let error = of(1, None, &["0", "1"], 4).unwrap_err();
        assert!(error.contains("names 2 devices"), "{error}");
        let error = of(2, None, &["1", "cuda:1"], 4).unwrap_err();
        assert!(
            error.contains("names cuda:1 twice: two ranks never share a device"),
            "{error}"
        );
        let error = of(2, None, &["gpu", "1"], 4).unwrap_err();
        assert!(error.contains("`gpu` is not a device"), "{error}");
    }
}
