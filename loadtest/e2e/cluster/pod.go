package cluster

import (
	"net/url"
	"time"
)

// Pod is what the tests and the Kubelet read of a pod.
type Pod struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
		CreationTimestamp time.Time         `json:"creationTimestamp"`
		DeletionTimestamp *time.Time        `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		NodeName           string      `json:"nodeName"`
		ServiceAccountName string      `json:"serviceAccountName"`
		AutomountToken     *bool       `json:"automountServiceAccountToken"` // nil is true
		Containers         []Container `json:"containers"`
	} `json:"spec"`
	Status struct {
		PodIP      string `json:"podIP"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

// Container is what the pods' manifests say of one.
type Container struct {
	Name    string   `json:"name"`
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Args    []string `json:"args"`

	SecurityContext struct {
		ReadOnlyRootFilesystem bool `json:"readOnlyRootFilesystem"`
	} `json:"securityContext"`
	Lifecycle struct {
		PreStop struct {
			Exec struct {
				Command []string `json:"command"`
			} `json:"exec"`
		} `json:"preStop"`
	} `json:"lifecycle"`
}

// Ready reports whether the pod is.
func (p *Pod) Ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// Pods lists the pods of a namespace that a label selector matches; an empty
// selector matches all, an empty namespace is every one.
func (c *Cluster) Pods(namespace, selector string) ([]Pod, error) {
	path := "/api/v1/pods"
	if namespace != "" {
		path = "/api/v1/namespaces/" + namespace + "/pods"
	}
	var list struct{ Items []Pod }
	err := c.Do("GET", path+"?labelSelector="+url.QueryEscape(selector), nil, &list)
	return list.Items, err
}
