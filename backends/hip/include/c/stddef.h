// <stddef.h> for device code without a host library: kvc_hip_device.h has it all.
#pragma once
#include "../kvc_hip_device.h"
