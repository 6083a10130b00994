//! What turns models' text into token ids: versions, whose contents are elsewhere.

use std::collections::BTreeMap;

use super::Publisher;
use crate::observation::{ModelVersion, Observation};

// === impl Publisher ===

impl Publisher {
    /// Replaces the versions by these, by model; what differs from before becomes a change.
    pub fn set_models(&mut self, versions: &BTreeMap<String, ModelVersion>) {
        let published = self.index.dictionary();
        let gone: Vec<Observation> = published
            .models()
            .filter(|(model_id, _)| !versions.contains_key(*model_id))
            .map(|(model_id, _)| Observation::ModelGone { model_id: model_id.to_owned() })
            .collect();
        let changed: Vec<Observation> = versions
            .iter()
            .filter(|(model_id, version)| published.model(model_id) != Some(**version))
            .map(|(model_id, version)| Observation::Model { model_id: model_id.clone(), version: *version })
            .collect();
        gone.into_iter().chain(changed).for_each(|change| self.commit(change));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::ModelDigest;
    use crate::publisher::PublisherLimits;

    fn versions(of: &[(&str, u128)]) -> BTreeMap<String, ModelVersion> {
        let version = |digest: &u128| ModelVersion { digest: ModelDigest(*digest), length: 9 };
        of.iter().map(|(model_id, digest)| ((*model_id).to_owned(), version(digest))).collect()
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let mut publisher = Publisher::new(PublisherLimits::default());
        publisher.set_models(&versions(&[("m", 1), ("n", 1)]));
        assert_eq!(publisher.take_changes().len(), 2);
        publisher.set_models(&versions(&[("m", 1), ("n", 1)]));
        assert_eq!(publisher.take_changes(), []);
        publisher.set_models(&versions(&[("n", 2)]));
        let version = ModelVersion { digest: ModelDigest(2), length: 9 };
        let expected =
            [Observation::ModelGone { model_id: "m".into() }, Observation::Model { model_id: "n".into(), version }];
        assert_eq!(publisher.take_changes(), expected);
        assert_eq!(publisher.index().dictionary().models().collect::<Vec<_>>(), [("n", version)]);
    }
}
