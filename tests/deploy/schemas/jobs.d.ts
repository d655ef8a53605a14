// SPDX-License-Identifier: Apache-2.0
// The part of the APIs of JobSet and Kubeflow Trainer that the examples use, because no package has types of them.
// Written after the definitions of JobSet at 08dfbdf (August 2026, 0.13 in the making) and of Trainer at 8c0f505
// (August 2026, 2.3.0-rc.3). A key that is not here is refused: add it after a look at the definition.
import type { IJobSpec } from "kubernetes-models/batch/v1";
import type { IContainer, IResourceRequirements } from "kubernetes-models/v1";

interface Metadata {
  name: string;
  namespace?: string;
  labels?: { [name: string]: string };
}

export interface IJobSet {
  apiVersion: "jobset.x-k8s.io/v1alpha2";
  kind: "JobSet";
  metadata: Metadata;
  spec: {
    replicatedJobs: { name: string; replicas?: number; template: { spec: IJobSpec } }[];
  };
}

export interface ITrainJob {
  apiVersion: "trainer.kubeflow.org/v1alpha1";
  kind: "TrainJob";
  metadata: Metadata;
  spec: {
    runtimeRef: { name: string; apiGroup?: string; kind?: string };
    trainer?: {
      numNodes?: number;
      numProcPerNode?: number | string;
      image?: string;
      command?: string[];
      args?: string[];
      env?: IContainer["env"];
      resourcesPerNode?: IResourceRequirements;
    };
  };
}
