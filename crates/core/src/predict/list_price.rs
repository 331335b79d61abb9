//! Prices of rented devices, as third parties transcribed them from those who rent them out: a start where nobody says what
//! theirs costs.
//!
//! On-demand prices of one device an hour in US dollars, of Lambda and of RunPod (Secure Cloud). None was read at the provider
//! or checked there, so that whoever shows one says so, with the provider and the day, and none decides how long a search
//! spends. Devices without a row have no price.

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ListPrice {
    /// Name in the table of data sheets.
    pub device: &'static str,
    pub usd_per_h: f64,
    /// Whoever rents the device out.
    pub provider: &'static str,
    /// Day of which the transcription is, ISO 8601.
    pub date: &'static str,
}

const fn price(device: &'static str, usd_per_h: f64, provider: &'static str, date: &'static str) -> ListPrice {
    ListPrice {
        device,
        usd_per_h,
        provider,
        date,
    }
}

/// The table.
const LIST_PRICES: [ListPrice; 11] = [
    price("A100 40GB", 1.99, "Lambda", "2026-09-20"),
    price("A100 80GB", 2.79, "Lambda", "2026-09-20"),
    price("A100 80GB PCIe", 1.79, "RunPod", "2026-11-09"),
    price("H100 SXM", 4.29, "Lambda", "2026-09-20"),
    price("H100 PCIe", 3.29, "Lambda", "2026-09-20"),
    price("H100 NVL", 3.19, "RunPod", "2026-11-09"),
    price("H200", 4.59, "RunPod", "2026-10-07"),
    price("B200", 6.99, "Lambda", "2026-09-20"),
    price("A10", 1.29, "Lambda", "2026-09-20"),
    price("RTX A6000", 1.09, "Lambda", "2026-09-20"),
    price("V100 16GB", 0.79, "Lambda", "2026-09-20"),
];

/// The listed price of the device that the table of data sheets has under this name.
pub(super) fn list_price(device: &str) -> Option<&'static ListPrice> {
    LIST_PRICES.iter().find(|row| row.device == device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::DEVICES;

    /// Whether a text is a day of the calendar, such as `2026-09-20`.
    fn is_day(text: &str) -> bool {
        let parts: Vec<Option<u16>> = text.split('-').map(|part| part.parse().ok()).collect();
        let [Some(2020..), Some(month), Some(day)] = parts[..] else {
            return false;
        };
        let days = match month {
            2 => 29,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        text.len() == 10 && (1..=12).contains(&month) && (1..=days).contains(&day)
    }

    #[test]
    fn rows_are_of_devices_with_data_sheets_each_once_and_dated() {
        for (index, row) in LIST_PRICES.iter().enumerate() {
            assert!(DEVICES.iter().any(|sheet| sheet.name == row.device), "{row:?}");
            assert!(
                LIST_PRICES[..index].iter().all(|other| other.device != row.device),
                "{row:?}"
            );
            assert!((0.05..50.0).contains(&row.usd_per_h), "{row:?}");
            assert!(is_day(row.date) && !row.provider.is_empty(), "{row:?}");
        }
        assert_eq!(list_price("H200").unwrap().usd_per_h, 4.59);
        assert_eq!(list_price("cpu"), None);
        for wrong in [
            "2026-99-99",
            "2026-00-10",
            "2026-04-31",
            "2026-9-20",
            "20-09-2026",
            "today",
        ] {
            assert!(!is_day(wrong), "{wrong}");
        }
    }
}
