// <hip/hip_runtime.h> on NVIDIA.
#pragma once
#include "../../kvc_hip_cuda.h"
