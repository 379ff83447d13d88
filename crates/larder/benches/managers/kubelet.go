// The kubelet's own managers, measured on request by the benchmark `managers`: each line on standard input names what
// to do and how often; the answer is the CPU time of this thread for one, in nanoseconds.
//
//	.ci/bench managers --kubelet DIR    DIR: a tree of Kubernetes with its vendored dependencies
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/kubelet/configmap"
	kubepod "k8s.io/kubernetes/pkg/kubelet/pod"
	"k8s.io/kubernetes/pkg/kubelet/util/manager"
)

const objects = 500

func name(number int) string { return fmt.Sprintf("config-%d", number) }

func pod(podName string, first, count int) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "n", Name: podName, UID: types.UID(fmt.Sprintf("%-36s", podName)),
	}}
	for number := first; number < first+count; number++ {
		source := &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name(number)}}
		volume := v1.Volume{Name: name(number), VolumeSource: v1.VolumeSource{ConfigMap: source}}
		pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
	}
	return pod
}

// synced registers 50 pods with 10 references each, and reads every object once.
func synced(configMaps configmap.Manager) configmap.Manager {
	for number := 0; number < objects; number += 10 {
		configMaps.RegisterPod(pod(fmt.Sprintf("pod-%d", number/10), number, 10))
	}
	for number := 0; number < objects; number++ {
		// A read waits for a second; 500 reflectors may take longer to start.
		for attempt := 0; ; attempt++ {
			_, err := configMaps.GetConfigMap("n", name(number))
			if err == nil {
				break
			}
			if attempt == 60 {
				panic(err)
			}
		}
	}
	return configMaps
}

// changes adds, updates and removes a pod beside this many others.
func changes(others int) func(int) {
	pods := kubepod.NewBasicPodManager()
	for number := 0; number < others; number++ {
		pods.AddPod(pod(fmt.Sprintf("other-%d", number), 0, 1))
	}
	added, updated := pod("one", 0, 1), pod("one", 1, 1)
	return func(count int) {
		for ; count > 0; count-- {
			pods.AddPod(added)
			pods.UpdatePod(updated)
			pods.RemovePod(updated)
		}
	}
}

func main() {
	client := fake.NewSimpleClientset()
	for number := 0; number < objects; number++ {
		object := &v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name(number), UID: "u", ResourceVersion: "5"},
			Data:       map[string]string{"k": "v"},
		}
		if err := client.Tracker().Add(object); err != nil {
			panic(err)
		}
	}
	// With each get the kubelet asks its lister for the Node (pkg/kubelet/kubelet_getters.go).
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	node := metav1.ObjectMeta{Name: "node", Annotations: map[string]string{v1.ObjectTTLAnnotationKey: "3600"}}
	if err := nodes.Add(&v1.Node{ObjectMeta: node}); err != nil {
		panic(err)
	}
	lister := corelisters.NewNodeLister(nodes)
	ttl := manager.GetObjectTTLFromNodeFunc(func(context.Context) (*v1.Node, error) { return lister.Get(node.Name) })
	watching := synced(configmap.NewWatchingConfigMapManager(client, time.Hour))
	caching := synced(configmap.NewCachingConfigMapManager(client, ttl))

	names := make([]string, objects)
	for number := range names {
		names[number] = name(number)
	}
	read := func(configMaps configmap.Manager) func(int) {
		return func(count int) {
			for done := 0; done < count; done++ {
				if _, err := configMaps.GetConfigMap("n", names[done%objects]); err != nil {
					panic(err)
				}
			}
		}
	}
	one, ten := pod("one", 0, 1), pod("ten", 0, 10)
	watching.RegisterPod(ten)
	beside100, beside1000 := changes(100), changes(1000)
	work := map[string]func(int){
		// Named as larder's rows; the kubelet reads by name.
		"read of a known object through the guard, Watch": read(watching),
		"read of a known object through the guard, Cache": read(caching),
		"register + unregister": func(count int) {
			for ; count > 0; count-- {
				watching.RegisterPod(one)
				watching.UnregisterPod(one)
			}
		},
		"register again, 10 references": func(count int) {
			for ; count > 0; count-- {
				watching.RegisterPod(ten)
			}
		},
		"add + update + remove a pod beside 100":  beside100,
		"add + update + remove a pod beside 1000": beside1000,
	}
	runtime.LockOSThread()
	debug.FreeOSMemory()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var count int
		number, what, _ := strings.Cut(lines.Text(), " ")
		if _, err := fmt.Sscan(number, &count); err != nil || work[what] == nil {
			panic(lines.Text())
		}
		start := cpu()
		work[what](count)
		fmt.Printf("%.2f\n", float64(cpu()-start)/float64(count))
	}
}

func cpu() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &time); err != nil {
		panic(err)
	}
	return time.Nano()
}
