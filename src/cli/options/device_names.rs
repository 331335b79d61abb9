//! The devices that `--devices` names.

use crate::cli::CliError;

/// The devices of `--devices` by their names; `never` says why none may be named twice.
///
/// # Errors
/// Bad input: what is no device, one that is named twice.
pub(in crate::cli) fn device_names(given: &[String], never: &str) -> Result<Vec<String>, CliError> {
    let named = |device: &String| match device.parse::<u16>() {
        Ok(number) => format!("cuda:{number}"),
        Err(_) => device.clone(),
    };
    let devices: Vec<String> = given.iter().map(named).collect();
    for (index, device) in devices.iter().enumerate() {
        let known = device == "cpu"
            || device
                .strip_prefix("cuda:")
                .is_some_and(|number| number.parse::<u16>().is_ok());
        let message = if !known {
            format!("`--devices`: `{device}` is not a device; write the number of a GPU, `cuda:0` or `cpu`")
        } else if devices[..index].contains(device) {
            format!("`--devices` names {device} twice: {never}")
        } else {
            continue;
        };
        return Err(CliError::bad_input(anyhow::anyhow!(message)));
    }
    Ok(devices)
}
