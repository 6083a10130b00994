//! Who is followed, for those who need no more than that.

use std::collections::{BTreeSet, HashMap};
use std::sync::{PoisonError, RwLock};

use crate::native::hub::config::ReplicaConfig;

/// The most models that are remembered: as many as tokenizers are looked for.
const MAX_MODELS: usize = 1_024;

/// The replicas' addresses, and the models that they serve or served.
#[derive(Debug, Default)]
pub struct FleetBook {
    addresses: RwLock<HashMap<String, String>>,
    models: RwLock<BTreeSet<String>>,
}

// === impl FleetBook ===

impl FleetBook {
    /// These are followed now. A model stays once it was served: its last replica may be back in a minute, and filters need
    /// not load its tokenizer again.
    pub fn set<'a>(&self, replicas: impl Iterator<Item = &'a ReplicaConfig>) {
        let mut addresses = HashMap::new();
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        for replica in replicas {
            addresses.insert(replica.id.clone(), replica.address.clone());
            if models.len() < MAX_MODELS && !models.contains(&replica.model) {
                models.insert(replica.model.clone());
            }
        }
        *self.addresses.write().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// `host:port` of the replica with this id, if it is followed.
    pub fn address(&self, replica_id: &str) -> Option<String> {
        self.addresses.read().unwrap_or_else(PoisonError::into_inner).get(replica_id).cloned()
    }

    /// The models that are served or were.
    pub fn models(&self) -> BTreeSet<String> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::hub::config::replicas_of_file;

    #[test]
    fn addresses_go_with_their_replicas_and_models_stay() {
        let read = |id: &str, model: &str| {
            replicas_of_file(&format!("[{{id: {id}, address: '{id}:1', kv_events: 'tcp://h:2', model: {model}}}]"))
                .unwrap()
        };
        let book = FleetBook::default();
        book.set(read("a", "m").iter());
        book.set(read("b", "n").iter());
        assert_eq!((book.address("a"), book.address("b")), (None, Some("b:1".to_owned())));
        assert_eq!(book.models().into_iter().collect::<Vec<_>>(), ["m", "n"]);
        for at in 0..2 * MAX_MODELS {
            book.set(read("c", &format!("m{at}")).iter());
        }
        assert_eq!(book.models().len(), MAX_MODELS);
    }
}
