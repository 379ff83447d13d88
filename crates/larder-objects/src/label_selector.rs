//! Label selectors.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Whether `selector` selects what has these labels. An operator that does not exist counts as `DoesNotExist`.
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut wanted = selector.match_labels.iter().flatten();
    let mut requirements = selector.match_expressions.iter().flatten();
    wanted.all(|(key, value)| labels.get(key) == Some(value))
        && requirements.all(|requirement| {
            let value = labels.get(&requirement.key);
            let listed = value.is_some_and(|value| {
                requirement
                    .values
                    .as_deref()
                    .unwrap_or_default()
                    .contains(value)
            });
            match requirement.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
}
