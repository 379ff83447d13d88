//! Failed reads as inputs of a projection, which decides by `optional` what an object that does not exist means.

use larder_objects::chain;
use larder_projection::Unavailable;

use crate::error::Error;

/// An object that is known not to exist is [`Unavailable::NotFound`]; every other error has failed, with its causes.
///
/// ```
/// use larder::ConfigMapManager;
/// use larder_projection::{Inputs, Unavailable};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// # let pod = serde_json::from_str(r#"{"metadata":{"namespace":"prod","name":"web","uid":"1"},"spec":{"containers":[],
/// #     "volumes":[{"name":"v","configMap":{"name":"app","optional":true}}]}}"#).unwrap();
/// let (config_maps, _objects) = ConfigMapManager::fake();
/// let registered = config_maps.registered(&pod);
/// let mut inputs = Inputs::default();
/// for name in larder::references::config_maps(&pod) {
///     let object = registered.get(&name).await.map_err(Unavailable::from);
///     inputs.config_maps.insert(name.to_string(), object);
/// }
/// assert_eq!(inputs.config_maps["app"], Err(Unavailable::NotFound));
/// # }
/// ```
impl From<Error> for Unavailable {
    fn from(error: Error) -> Self {
        if error.is_not_found() {
            Self::NotFound
        } else {
            Self::failed(chain(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_objects::{ConfigMap, Object as _, ObjectKey};
    use larder_watch::{RequestFailure, RequestPhase};

    use super::*;
    use crate::error::tests::status;

    #[test]
    fn only_an_object_that_does_not_exist_is_not_found() {
        let failed = |phase, code| {
            let failure = RequestFailure::new(phase, status(code));
            let error = Error::of_failure(ConfigMap::TYPE, ObjectKey::new("n", "a"), failure);
            Unavailable::from(error)
        };
        assert_eq!(failed(RequestPhase::Get, 404), Unavailable::NotFound);
        assert_eq!(
            failed(RequestPhase::List, 403),
            Unavailable::failed("not allowed to read configmap n/a: status 403")
        );
    }
}
